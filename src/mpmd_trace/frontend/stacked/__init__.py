"""Parameters that hold stacked layers, split over the meshes of their stages."""
